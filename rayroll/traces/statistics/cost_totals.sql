-- What the whole trace cost, in USD, at the prices of a table (cost), and how many of its steps have a price at all.
-- $prices = null: lines of a price table, rayroll.traces.prices.load().rows(); null prices nothing
-- Source: TraceLab, session_cost_distribution.
SELECT
    if(grouping(provider) = 1, 'all', provider) AS provider,
    count(*) AS steps,
    count(append_usd) AS priced_steps,
    count(append_usd) / nullif(count(*), 0) AS priced_share,
    coalesce(sum(append_usd), 0) AS append_usd,
    coalesce(sum(prefix_usd), 0) AS prefix_usd,
    coalesce(sum(output_usd), 0) AS output_usd,
    coalesce(sum(append_usd + prefix_usd + output_usd), 0) AS total_usd
FROM step_costs($prices)
GROUP BY GROUPING SETS ((), (provider))
ORDER BY provider;
