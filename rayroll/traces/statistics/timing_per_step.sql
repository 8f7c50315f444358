-- Seconds of generation and of tools in a step, 0 where it has none. share: of both together.
-- Source: TraceLab, session_timing_distribution; facts.json timing_seconds.per_step.
WITH units AS (
    UNPIVOT (
        SELECT provider, coalesce(generation_s, 0) AS generation, coalesce(tool_s, 0) AS tool,
            generation + tool AS whole
        FROM steps LEFT JOIN step_tools USING (step_id)
    )
    ON generation, tool INTO NAME part VALUE seconds
)
SELECT if(grouping(provider) = 1, 'all', provider) AS provider, part, unnest(distribution(seconds)),
    sum(seconds) / nullif(sum(whole), 0) AS share
FROM units
GROUP BY GROUPING SETS ((part), (provider, part))
ORDER BY provider, list_position(['generation', 'tool'], part);
