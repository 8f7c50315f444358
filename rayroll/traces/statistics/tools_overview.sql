-- Tool calls, their different names, errors, and the share of the three most called.
-- Source: TraceLab, facts.json tools.distinct_tool_names, top3_share_pct, error_rate.
WITH named AS (
    SELECT if(grouping(provider) = 1, 'all', provider) AS provider, name, count(*) AS calls,
        count(*) FILTER (is_error) AS errors
    FROM tools JOIN steps USING (step_id)
    GROUP BY GROUPING SETS ((name), (provider, name))
),
ranked AS (SELECT *, row_number() OVER (PARTITION BY provider ORDER BY calls DESC, name) AS place FROM named)
SELECT provider, sum(calls)::BIGINT AS calls, count(*) AS names,
    sum(calls) FILTER (place <= 3) / sum(calls) AS top3_share,
    sum(errors)::BIGINT AS errors, sum(errors) / sum(calls) AS error_rate
FROM ranked
GROUP BY provider
ORDER BY provider;
