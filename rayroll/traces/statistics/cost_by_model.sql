-- What each model cost, in USD, at the prices of a table (cost). total_usd is NULL for a model without a price: its
-- steps are in no sum of costs. Steps that name no model are of model NULL.
-- $prices = null: lines of a price table, rayroll.traces.prices.load().rows(); null prices nothing
-- Source: TraceLab, session_cost_distribution (its coverage).
SELECT
    provider,
    model,
    count(*) AS steps,
    sum(append_usd + prefix_usd + output_usd) AS total_usd
FROM step_costs($prices)
GROUP BY provider, model
ORDER BY total_usd DESC NULLS LAST, steps DESC, provider, model;
