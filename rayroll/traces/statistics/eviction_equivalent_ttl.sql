-- The time that an ideal cache (eviction_sweep) would have to hold idle sessions to hit as often as the real one did on
-- the same steps: the shortest gap that, taken as the ttl, reaches the observed hit rate. NULL: no ttl reaches it.
-- Source: TraceLab, eviction_tradeoff (its effective eviction time, there read off a grid).
WITH gaps AS MATERIALIZED (SELECT provider, gap_us, cacheable_tokens, prefix_tokens FROM idle_gaps),
scoped AS (
    SELECT * FROM gaps
    UNION ALL
    SELECT * REPLACE ('all' AS provider) FROM gaps
),
reached AS (
    SELECT
        *,
        sum(cacheable_tokens) OVER (PARTITION BY provider ORDER BY gap_us RANGE UNBOUNDED PRECEDING) AS hit_tokens,
        sum(prefix_tokens) OVER (PARTITION BY provider) AS observed_tokens
    FROM scoped
)
SELECT provider, min(gap_us) FILTER (WHERE hit_tokens >= observed_tokens) / 1e6 AS ttl_s
FROM reached
GROUP BY provider
ORDER BY provider;
