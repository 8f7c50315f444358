-- What a request holds: its steps, those whose first input is a user's message, those whose first input is a tool's
-- result, and tool calls. A request is one user turn, from the last user message before the first model output to the
-- last model output before the next such message.
-- Source: TraceLab, session_internal_counts; facts.json counts.per_request.
WITH units AS (
    UNPIVOT (
        SELECT provider, steps, user_steps AS user_initiated_steps, tool_steps AS tool_initiated_steps, tool_calls
        FROM requests
    )
    ON steps, user_initiated_steps, tool_initiated_steps, tool_calls INTO NAME counted VALUE value
)
SELECT if(grouping(provider) = 1, 'all', provider) AS provider, counted, unnest(distribution(value))
FROM units
GROUP BY GROUPING SETS ((counted), (provider, counted))
ORDER BY provider, list_position(['steps', 'user_initiated_steps', 'tool_initiated_steps', 'tool_calls'], counted);
