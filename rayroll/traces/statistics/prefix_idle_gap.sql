-- How long a session's KV cache lies idle before a step. A user's step: its first activity minus the last activity of
-- the step before. A tool's step: the longest of the calls whose results open it. Gaps of 0 count; gaps below 0, which
-- only a clock that was set back can make, do not.
-- Source: TraceLab, cache_hit_idle_relationship (idle_gap_for_eviction).
SELECT
    if(grouping(provider) = 1, 'all', provider) AS provider,
    if(grouping(trigger) = 1, 'all', trigger) AS trigger,
    count(*) AS steps,
    avg(gap_us) / 1e6 AS avg_s,
    quantile_cont(gap_us / 1e6, 0.5) AS p50_s,
    quantile_cont(gap_us / 1e6, 0.9) AS p90_s,
    quantile_cont(gap_us / 1e6, 0.99) AS p99_s
FROM idle_gaps
GROUP BY GROUPING SETS ((), (provider), (trigger), (provider, trigger))
ORDER BY ALL;
