-- A trace as work: each step's waits before its calls, and how long each call took. One row for each call, and one with
-- NULLs for a step without any. A lane is what acts in one context: a session, or one subagent inside it.
SELECT
    s.session_id || CASE WHEN s.is_subagent THEN '#' || coalesce(s.agent_id, 'subagent') ELSE '' END AS lane,
    -- From 1 in its lane.
    dense_rank() OVER (PARTITION BY lane ORDER BY s.round_index, s.step_id) AS place,
    s.provider, s.trace_key, s.step_id,
    s.generation_s, w.wait_s,
    t.tool_index, t.name, t.result_chars, t.command,
    -- Effective; one that took no time that a clock could tell is 0, and NULL is unknown.
    coalesce(t.effective_ms, t.internal_ms, t.wall_ms) / 1000 AS call_s,
    -- Began before another call of its step had ended.
    coalesce(t.emitted_at < max(t.result_at) OVER (
        PARTITION BY t.step_id ORDER BY t.tool_index ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ), false) AS is_beside
FROM steps s
LEFT JOIN (SELECT step_id, sum(wait_s) AS wait_s FROM human_waits GROUP BY step_id) w USING (step_id)
LEFT JOIN tools t USING (step_id)
