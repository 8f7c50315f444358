-- The share of all input tokens that were read from the prefix cache: sum of prefix by sum of prefix and append, so
-- that a long step weighs more. Trigger: the type of the step's first event; steps that start with anything else, or
-- have no event, count under all only.
-- Source: TraceLab, trace_facts/overview_summary and cache_hit_ratio.
SELECT
    if(grouping(provider) = 1, 'all', provider) AS provider,
    if(grouping(trigger) = 1, 'all', trigger) AS trigger,
    count(*) AS steps,
    sum(prefix_tokens) AS prefix_tokens,
    sum(append_tokens) AS append_tokens,
    sum(prefix_tokens) / nullif(sum(prefix_tokens + append_tokens), 0) AS hit_rate
FROM steps
WHERE prefix_tokens IS NOT NULL AND append_tokens IS NOT NULL
GROUP BY GROUPING SETS ((), (provider), (trigger), (provider, trigger))
HAVING grouping(trigger) = 1 OR trigger IS NOT NULL
ORDER BY ALL;
