-- Steps by the type of their first input event: a user's message, a tool's result, or (NULL) none.
-- Source: TraceLab, facts.json scope.first_input_event.
SELECT if(grouping(provider) = 1, 'all', provider) AS provider, first_event_type, count(*) AS steps
FROM steps
GROUP BY GROUPING SETS ((first_event_type), (provider, first_event_type))
ORDER BY provider, first_event_type NULLS LAST;
