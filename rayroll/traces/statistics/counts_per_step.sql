-- How many tools one model call calls; most steps of any agent call one.
-- Source: TraceLab, session_internal_counts; facts.json counts.per_step.
SELECT if(grouping(provider) = 1, 'all', provider) AS provider, 'tool_calls' AS counted,
    unnest(distribution(coalesce(calls, 0)))
FROM steps LEFT JOIN step_tools USING (step_id)
GROUP BY GROUPING SETS ((), (provider))
ORDER BY provider;
