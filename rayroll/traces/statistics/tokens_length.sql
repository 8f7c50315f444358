-- How many tokens a step has. prefix: input billed as read from the cache. append: input that was not. output:
-- generated, reasoning included. adjusted_append: append without the previous step's output that comes back as input,
-- not below 0, of steps that follow that step at once (the next round_index); only Claude and gpt-5.5 send the output
-- again, after any other model it is the append itself.
-- Source: TraceLab, token_length_distribution and adjusted_prefix_append (its total-output policy).
WITH lengths AS (
    SELECT provider, 'prefix' AS measure, prefix_tokens AS tokens FROM steps
    UNION ALL
    SELECT provider, 'append', append_tokens FROM steps
    UNION ALL
    SELECT provider, 'output', output_tokens FROM steps
    UNION ALL
    SELECT
        provider,
        'adjusted_append',
        greatest(
            append_tokens
                - if(provider = 'claude' OR coalesce(previous_model = 'gpt-5.5', false), previous_output_tokens, 0),
            0
        )
    FROM contexts
    WHERE round_index = previous_round_index + 1 AND append_tokens IS NOT NULL
)
SELECT
    if(grouping(provider) = 1, 'all', provider) AS provider,
    measure,
    count(*) AS steps,
    avg(tokens) AS avg,
    quantile_cont(tokens, 0.25) AS p25,
    quantile_cont(tokens, 0.5) AS p50,
    quantile_cont(tokens, 0.9) AS p90,
    quantile_cont(tokens, 0.99) AS p99
FROM lengths
WHERE tokens >= 0
GROUP BY GROUPING SETS ((measure), (provider, measure))
ORDER BY ALL;
