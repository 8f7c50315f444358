-- Effective latency of tool calls, in milliseconds: what the tool's runner reported, else result minus call by the
-- client's clock; only what is above 0. hours are attributed work, parallel calls added up.
-- Source: TraceLab, facts.json tools.effective_latency_ms_by_provider, total_hours, definitions.tool_effective_latency.
SELECT if(grouping(provider) = 1, 'all', provider) AS provider, count(*) AS calls,
    coalesce(sum(effective_ms), 0) / 3.6e6 AS hours, unnest(distribution(effective_ms))
FROM tools JOIN steps USING (step_id)
GROUP BY GROUPING SETS ((), (provider))
ORDER BY provider;
