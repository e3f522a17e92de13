DROP TABLE inbox_task;
