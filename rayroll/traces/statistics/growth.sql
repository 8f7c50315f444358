-- Which way contexts go: a step's input (prefix and append) against that of the step before it in the session, for
-- steps with a trigger. major: drops of at least 64,000 tokens. avg_added_tokens: of the steps that grow.
-- $min_drop_tokens = 64000: the smallest drop that is a major reduction
-- Source: TraceLab, total_input_growth.
SELECT
    if(grouping(provider) = 1, 'all', provider) AS provider,
    if(grouping(trigger) = 1, 'all', trigger) AS trigger,
    count(*) AS steps,
    count(*) FILTER (WHERE change > 0) AS growing_steps,
    count(*) FILTER (WHERE change < 0) AS shrinking_steps,
    count(*) FILTER (WHERE change > 0) / nullif(count(*), 0) AS growing_share,
    count(*) FILTER (WHERE change < 0) / nullif(count(*), 0) AS shrinking_share,
    count(*) FILTER (WHERE -change >= $min_drop_tokens) / nullif(count(*), 0) AS major_share,
    avg(change) FILTER (WHERE change > 0) AS avg_added_tokens
FROM (
    SELECT provider, trigger, total_tokens - previous_total_tokens AS change
    FROM contexts
    WHERE growth_tokens IS NOT NULL AND trigger IS NOT NULL
)
GROUP BY GROUPING SETS ((), (provider), (trigger), (provider, trigger))
ORDER BY ALL;
