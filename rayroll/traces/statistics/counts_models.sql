-- Steps by model as the agent names it; calls_per_step: tool calls for each of its steps.
-- Source: TraceLab, facts.json scope.models_steps.
SELECT provider, model, count(*) AS steps, coalesce(sum(calls), 0) / count(*) AS calls_per_step
FROM steps LEFT JOIN step_tools USING (step_id)
WHERE model IS NOT NULL
GROUP BY provider, model
ORDER BY steps DESC, provider, model;
