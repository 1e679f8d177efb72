DO 'BEGIN CREATE ROLE grid_owner SUPERUSER; EXCEPTION WHEN duplicate_object THEN NULL; END';
CREATE SCHEMA grid;
CREATE TABLE grid.marker (id int PRIMARY KEY);
CREATE TABLE grid.bulk (id int PRIMARY KEY, v text);
CREATE FUNCTION grid.nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';

-- The table of a cell, also after it was renamed or made again.
CREATE TABLE grid.tables (name text PRIMARY KEY, oid oid);
CREATE FUNCTION grid.find(s text) RETURNS regclass LANGUAGE plpgsql AS $$
DECLARE o oid;
BEGIN
    SELECT c.oid INTO o FROM pg_class c JOIN grid.tables t ON t.oid = c.oid WHERE t.name = s;
    RETURN coalesce(o, to_regclass(s || '.t'));
END $$;

-- Insert a row, update the first row and delete the next one; without EXCEPTION, which would begin a subtransaction.
CREATE FUNCTION grid.change(s text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    t regclass := grid.find(s);
    rows text;
    col text;
BEGIN
    IF t IS NULL THEN RETURN; END IF;
    EXECUTE format('INSERT INTO %s DEFAULT VALUES', t);
    rows := (SELECT CASE relkind WHEN 'r' THEN 'ONLY ' ELSE '' END || t FROM pg_class WHERE oid = t);
    IF NOT EXISTS (
        SELECT FROM pg_class c WHERE relkind = 'r' AND NOT (relreplident = 'f' OR EXISTS (
            SELECT FROM pg_index WHERE indrelid = c.oid AND CASE relreplident WHEN 'd' THEN indisprimary WHEN 'i' THEN indisreplident END
        )) AND (c.oid = t OR c.oid IN (SELECT relid FROM pg_partition_tree(t)))
    ) THEN
        SELECT attname INTO col FROM pg_attribute
        WHERE attrelid = t AND attnum > 0 AND NOT attisdropped AND attidentity = '' AND attgenerated = '' ORDER BY attnum LIMIT 1;
        EXECUTE format('UPDATE %s SET %I = %I WHERE (tableoid, ctid) = (SELECT tableoid, ctid FROM %1$s ORDER BY 1, 2 LIMIT 1)', rows, col, col);
        EXECUTE format('DELETE FROM %s WHERE (tableoid, ctid) = (SELECT tableoid, ctid FROM %1$s ORDER BY 1, 2 LIMIT 1)', rows);
    END IF;
END $$;

CREATE FUNCTION grid.publish(s text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('ALTER PUBLICATION %I ADD TABLE %s', s || '_p', grid.find(s));
END $$;
