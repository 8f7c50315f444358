-- Tool calls for each step of a model, its dated versions (-20250929) taken together.
-- Source: TraceLab, facts.json scope.tool_calls_per_step_by_model.
SELECT regexp_replace(model, '-\d{8}$', '') AS model, count(*) AS steps,
    coalesce(sum(calls), 0) / count(*) AS calls_per_step
FROM steps LEFT JOIN step_tools USING (step_id)
WHERE model IS NOT NULL
GROUP BY ALL
ORDER BY calls_per_step DESC, model;
