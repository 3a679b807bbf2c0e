-- Types: PostgreSQL asks for them by itself. The names that a URL cannot hold are refused here as on SQLite; what has such a name already keeps it.
ALTER TABLE postcommit.tenant ADD CONSTRAINT tenant_other_than_dot_and_dot_dot CHECK (name NOT IN ('.', '..')) NOT VALID;
