-- The sessions with the most steps.
-- $top = 10: how many
-- Source: TraceLab, facts.json scope.longest_sessions_steps.
SELECT session_id, provider, steps, tool_calls, elapsed_s
FROM sessions
ORDER BY steps DESC, session_id
LIMIT $top;
