DROP TABLE inbox_fence;
DROP TABLE inbox;
DROP TABLE inbox_scope;
