-- Sessions, steps and tool calls of each provider. A session is all steps that share a session id; a step is one model
-- call (facts.json: scope).
SELECT provider, count(DISTINCT session_id) AS sessions, count(*) AS steps, coalesce(sum(calls), 0)::BIGINT AS tool_calls
FROM steps LEFT JOIN step_tools USING (step_id)
GROUP BY provider
ORDER BY provider
