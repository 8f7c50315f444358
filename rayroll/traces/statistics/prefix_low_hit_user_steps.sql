-- User steps that hardly hit the prefix cache, and the idle gap before them: a long one says that the cache was given
-- up while the user thought. A step's hit rate is prefix by prefix and append. Only steps whose gap is known.
-- $hit_rate_below = 0.1: steps below it are low
-- Source: TraceLab, cache_hit_idle_relationship.
SELECT
    if(grouping(provider) = 1, 'all', provider) AS provider,
    count(*) AS user_steps,
    count(*) FILTER (WHERE is_low) AS low_steps,
    quantile_cont(gap_us / 1e6, 0.5) FILTER (WHERE is_low) AS low_gap_p50_s,
    quantile_cont(gap_us / 1e6, 0.9) FILTER (WHERE is_low) AS low_gap_p90_s,
    quantile_cont(gap_us / 1e6, 0.5) AS gap_p50_s,
    quantile_cont(gap_us / 1e6, 0.9) AS gap_p90_s
FROM (SELECT *, prefix_tokens / total_tokens < $hit_rate_below AS is_low FROM idle_gaps WHERE trigger = 'user')
GROUP BY GROUPING SETS ((), (provider))
ORDER BY provider;
