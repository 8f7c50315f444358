-- All tokens of the trace. input: prefix and append; output: reasoning included; reasoning_share: of all output; NULL
-- where no agent reports reasoning; input_to_output: tokens read for each one written.
-- Source: TraceLab, trace_facts/overview_summary.
SELECT
    if(grouping(provider) = 1, 'all', provider) AS provider,
    count(*) AS steps,
    coalesce(sum(prefix_tokens), 0) + coalesce(sum(append_tokens), 0) AS input_tokens,
    coalesce(sum(prefix_tokens), 0) AS prefix_tokens,
    coalesce(sum(append_tokens), 0) AS append_tokens,
    coalesce(sum(output_tokens), 0) AS output_tokens,
    sum(reasoning_tokens) AS reasoning_tokens,
    sum(reasoning_tokens) / nullif(sum(output_tokens), 0) AS reasoning_share,
    (coalesce(sum(prefix_tokens), 0) + coalesce(sum(append_tokens), 0)) / nullif(sum(output_tokens), 0)
        AS input_to_output
FROM steps
GROUP BY GROUPING SETS ((), (provider))
ORDER BY provider;
