-- The share of the time that a KV cache is kept for in which it works: generation by generation, tool calls and human
-- waits. A call or a wait above the limit is dropped whole, not capped, for the cache is given up in it
-- (eviction_sweep's R caps instead). Calls by their effective time, each for itself even where several ran at once.
-- $limits_s = [60,600,3600]: seconds, one row for each
-- Source: TraceLab, kv_cache_active_ratio.
WITH limits AS (SELECT DISTINCT unnest(CAST($limits_s AS DOUBLE[])) AS limit_s),
waits AS (
    SELECT provider, effective_ms / 1e3 AS wait_s, 'tool' AS kind
    FROM tools JOIN steps USING (step_id)
    WHERE effective_ms > 0
    UNION ALL
    SELECT provider, wait_s, 'human' FROM human_waits
),
generation AS (SELECT provider, generation_us / 1e6 AS generation_s FROM generation_totals),
kept AS (
    SELECT
        if(grouping(provider) = 1, 'all', provider) AS provider,
        limit_s,
        coalesce(sum(wait_s) FILTER (WHERE kind = 'tool'), 0) AS tool_s,
        coalesce(sum(wait_s) FILTER (WHERE kind = 'human'), 0) AS human_s
    FROM waits JOIN limits ON wait_s <= limit_s
    GROUP BY GROUPING SETS ((limit_s), (provider, limit_s))
)
SELECT
    provider,
    limit_s,
    generation_s,
    coalesce(tool_s, 0) AS tool_s,
    coalesce(human_s, 0) AS human_s,
    generation_s / (generation_s + coalesce(tool_s, 0) + coalesce(human_s, 0)) AS active_ratio
FROM generation CROSS JOIN limits LEFT JOIN kept USING (provider, limit_s)
ORDER BY provider, limit_s;
