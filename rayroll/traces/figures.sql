-- How what a trace measures is distributed: of each curve and series, the value at each of some shares. What is measured
-- are the columns that the statistics are about, and what they leave out is left out here (tests hold both together).
-- $shares: as a list, from 0 to 1
WITH measured AS (
    SELECT 'tool_latency_s' AS curve, category AS series, effective_ms / 1000 AS value FROM tools WHERE effective_ms > 0
    UNION ALL
    SELECT 'human_wait_s', provider, wait_s FROM human_waits
    UNION ALL
    SELECT 'generation_s', provider, generation_s FROM steps WHERE generation_s > 0
    UNION ALL
    SELECT 'request_s', provider, e2e_s FROM requests
    UNION ALL
    SELECT 'session_s', provider, elapsed_s FROM sessions WHERE elapsed_s IS NOT NULL
    UNION ALL
    SELECT 'prefix_tokens', provider, prefix_tokens FROM steps WHERE prefix_tokens >= 0
    UNION ALL
    SELECT 'append_tokens', provider, append_tokens FROM steps WHERE append_tokens >= 0
    UNION ALL
    SELECT 'output_tokens', provider, output_tokens FROM steps WHERE output_tokens >= 0
),
described AS (
    SELECT curve, if(grouping(series) = 1, 'all', series) AS series, count(*) AS n, quantile_cont(value, $shares) AS found
    FROM measured
    GROUP BY GROUPING SETS ((curve), (curve, series))
)
SELECT curve, series, n, unnest($shares) AS share, unnest(found) AS value
FROM described
ORDER BY curve, series <> 'all', series, share;
