-- Calls by their effective latency: few long ones take most of the time. A bin holds its lower bound.
-- Source: TraceLab, facts.json tools.latency_bins.
WITH bins(place, bin, low_ms, high_ms) AS (
    VALUES (0, '<1s', 0, 1e3), (1, '1-10s', 1e3, 1e4), (2, '10s-1m', 1e4, 6e4), (3, '>1m', 6e4, 'inf'::DOUBLE)
),
counted AS (
    SELECT if(grouping(p.provider) = 1, 'all', p.provider) AS provider, bin, place,
        count(effective_ms) AS calls, coalesce(sum(effective_ms), 0) / 3.6e6 AS hours
    FROM (SELECT DISTINCT provider FROM steps) p CROSS JOIN bins
    LEFT JOIN (SELECT provider, effective_ms FROM tools JOIN steps USING (step_id)) c
        ON c.provider = p.provider AND effective_ms >= low_ms AND effective_ms < high_ms
    GROUP BY GROUPING SETS ((bin, place), (p.provider, bin, place))
)
SELECT provider, bin, calls, hours,
    calls / nullif(sum(calls) OVER (PARTITION BY provider), 0) AS share_of_calls,
    hours / nullif(sum(hours) OVER (PARTITION BY provider), 0) AS share_of_time
FROM counted
ORDER BY provider, place;
