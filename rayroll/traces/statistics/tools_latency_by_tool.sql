-- Effective latency of each tool's calls, in milliseconds (as in tools_latency), its hours, and its share of all tools'.
-- Source: TraceLab, facts.json tools.effective_latency_ms_by_tool, hours_by_tool.
SELECT name, count(*) AS calls, coalesce(sum(effective_ms), 0) / 3.6e6 AS hours,
    hours / nullif(sum(hours) OVER (), 0) AS share_of_time, unnest(distribution(effective_ms))
FROM tools
GROUP BY name
ORDER BY hours DESC, calls DESC, name;
