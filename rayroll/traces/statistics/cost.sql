-- What a session, a request and a step cost, in USD: append tokens at the price of fresh input (or of a cache write),
-- prefix tokens at that of a cache read, output tokens (reasoning included) at that of output. Steps whose model has no
-- price are left out; a session counts if any of its steps has a price, a request always. share: the part's share of
-- what all priced steps of the provider cost, the same for each unit.
-- $prices = null: lines of a price table, rayroll.traces.prices.load().rows(); null prices nothing
-- Source: TraceLab, session_cost_distribution.
WITH costs AS MATERIALIZED (SELECT * FROM step_costs($prices)),
units AS (
    SELECT 'step' AS unit, provider, append_usd AS append, prefix_usd AS prefix, output_usd AS output
    FROM costs
    WHERE append_usd IS NOT NULL
    UNION ALL
    SELECT 'session', provider, sum(append_usd), sum(prefix_usd), sum(output_usd)
    FROM costs
    WHERE append_usd IS NOT NULL
    GROUP BY provider, session_id
    UNION ALL
    SELECT
        'request',
        requests.provider,
        coalesce(sum(append_usd), 0),
        coalesce(sum(prefix_usd), 0),
        coalesce(sum(output_usd), 0)
    FROM requests
    JOIN step_requests USING (session_id, request_index)
    JOIN costs USING (step_id)
    GROUP BY requests.provider, session_id, request_index
),
parts AS (
    UNPIVOT (SELECT *, append + prefix + output AS total FROM units)
    ON append, prefix, output, total INTO NAME part VALUE usd
),
described AS (
    SELECT
        if(grouping(provider) = 1, 'all', provider) AS provider,
        unit,
        part,
        count(*) AS units,
        avg(usd) AS avg_usd,
        quantile_cont(usd, 0.5) AS p50_usd,
        quantile_cont(usd, 0.9) AS p90_usd,
        quantile_cont(usd, 0.99) AS p99_usd,
        sum(usd) AS sum_usd
    FROM parts
    GROUP BY GROUPING SETS ((unit, part), (provider, unit, part))
)
SELECT
    * EXCLUDE (sum_usd),
    max(sum_usd) FILTER (WHERE unit = 'step') OVER (PARTITION BY provider, part)
        / nullif(max(sum_usd) FILTER (WHERE unit = 'step' AND part = 'total') OVER (PARTITION BY provider), 0) AS share
FROM described
ORDER BY provider, unit, part;
