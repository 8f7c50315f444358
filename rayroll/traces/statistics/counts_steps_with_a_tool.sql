-- Steps that call at least one tool, and their share of all steps.
-- Source: TraceLab, facts.json scope.steps_with_a_tool.
SELECT if(grouping(provider) = 1, 'all', provider) AS provider,
    count(*) AS steps, count(calls) AS with_a_tool, count(calls) / count(*) AS share
FROM steps LEFT JOIN step_tools USING (step_id)
GROUP BY GROUPING SETS ((), (provider))
ORDER BY provider;
