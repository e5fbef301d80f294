-- Notifies a channel of every statement that inserts into the outbox, once its
-- transaction commits: for walrelay poll --listen. It is optional.
--
-- Transactions that notify commit one after the other, in the whole server, and
-- cannot be prepared (PREPARE TRANSACTION).
-- https://www.postgresql.org/docs/current/sql-notify.html
DO {{quote}}
BEGIN
  IF EXISTS (SELECT FROM pg_trigger WHERE tgrelid = {{literal}}::regclass AND tgname = 'walrelay_notify') THEN
    RETURN;
  END IF;
  IF to_regprocedure({{signature}}) IS NULL THEN
    CREATE FUNCTION {{function}}() RETURNS trigger LANGUAGE plpgsql AS $notify$
    BEGIN
      PERFORM pg_notify(TG_ARGV[0], '');
      RETURN NULL;
    END
    $notify$;
  END IF;
  -- A trigger waits for the table's writers, and later ones wait behind it.
  SET LOCAL lock_timeout = '5s';
  CREATE TRIGGER walrelay_notify AFTER INSERT ON {{table}}
    FOR EACH STATEMENT EXECUTE FUNCTION {{function}}({{channel}});
END
{{quote}};
