-- Timing events by their type. user_message and tool_result are a step's input; reasoning, text and tool_call its output;
-- usage_report (Codex) is neither.
-- Source: TraceLab, facts.json scope.timing_events.
SELECT if(grouping(provider) = 1, 'all', provider) AS provider,
    if(grouping(type) = 1, 'all', type) AS type, count(*) AS events
FROM events JOIN steps USING (step_id)
GROUP BY GROUPING SETS ((), (type), (provider), (provider, type))
ORDER BY provider, events DESC, type;
