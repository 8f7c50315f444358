-- Decode speed, normalised (decode_speed), by how long the step's input was: bins double, from_tokens included. The
-- speed falls with the context, for each token looks at all before it.
-- Source: TraceLab, context_decode_speed_scatter.
SELECT
    if(grouping(provider) = 1, 'all', provider) AS provider,
    CAST(2 ** floor(log2(total_tokens)) AS BIGINT) AS from_tokens,
    count(*) AS steps,
    quantile_cont(output_tokens / generation_s, 0.25) AS p25_tokens_per_s,
    quantile_cont(output_tokens / generation_s, 0.5) AS p50_tokens_per_s,
    quantile_cont(output_tokens / generation_s, 0.9) AS p90_tokens_per_s
FROM contexts
WHERE output_tokens > 0 AND generation_s > 0 AND total_tokens > 0
GROUP BY GROUPING SETS ((from_tokens), (provider, from_tokens))
ORDER BY ALL;
