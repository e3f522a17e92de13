CREATE INDEX inbox_created_at ON inbox USING brin (created_at);
DROP TABLE inbox_purge;
DROP TABLE inbox_mark;
