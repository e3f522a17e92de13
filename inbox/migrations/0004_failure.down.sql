DROP TABLE inbox_parked;
DROP TABLE inbox_attempt;
UPDATE inbox_fence SET parked = false WHERE parked;
