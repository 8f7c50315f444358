-- Decode speed, normalised: a step's output tokens by its generation span (newest input to last output), in tokens a
-- second; it therefore holds queueing and the time to the first token. Steps with output and a span above 0.
-- Source: TraceLab, trace_facts/paper_macros (mediandecodespeed).
SELECT
    if(grouping(provider) = 1, 'all', provider) AS provider,
    count(*) AS steps,
    avg(output_tokens / generation_s) AS avg_tokens_per_s,
    quantile_cont(output_tokens / generation_s, 0.5) AS p50_tokens_per_s,
    quantile_cont(output_tokens / generation_s, 0.9) AS p90_tokens_per_s,
    quantile_cont(output_tokens / generation_s, 0.99) AS p99_tokens_per_s
FROM steps
WHERE output_tokens > 0 AND generation_s > 0
GROUP BY GROUPING SETS ((), (provider))
ORDER BY provider;
