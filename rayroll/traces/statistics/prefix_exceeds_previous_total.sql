-- Steps that read more from the cache than the whole input of the step before them: the cache then held what that step
-- wrote, or another session's context. Compared are all steps but the first of each session.
-- Source: TraceLab, cache_replay.
SELECT
    if(grouping(provider) = 1, 'all', provider) AS provider,
    count(*) AS compared_steps,
    count(*) FILTER (WHERE prefix_tokens > previous_total_tokens) AS exceeding_steps,
    count(*) FILTER (WHERE prefix_tokens > previous_total_tokens) / nullif(count(*), 0) AS exceeding_share
FROM contexts
WHERE growth_tokens IS NOT NULL
GROUP BY GROUPING SETS ((), (provider))
ORDER BY provider;
