-- Seconds of single waits for the user, generations and tool calls, each only where it is above 0.
-- Source: TraceLab, session_timing_distribution; facts.json timing_seconds.per_individual_event.
WITH units AS (
    SELECT provider, 'human_wait' AS part, wait_s AS seconds FROM human_waits
    UNION ALL
    SELECT provider, 'generation_span', generation_s FROM steps WHERE generation_s > 0
    UNION ALL
    SELECT provider, 'tool_call', effective_ms / 1000 FROM tools JOIN steps USING (step_id) WHERE effective_ms > 0
)
SELECT if(grouping(provider) = 1, 'all', provider) AS provider, part, unnest(distribution(seconds))
FROM units
GROUP BY GROUPING SETS ((part), (provider, part))
ORDER BY provider, list_position(['human_wait', 'generation_span', 'tool_call'], part);
