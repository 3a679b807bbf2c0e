-- Sets the hash of the address, by which lists find a recipient, in rows whose statement left it out.
CREATE OR REPLACE FUNCTION postcommit.hash_recipient() RETURNS trigger
  LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  NEW.recipient_hash := hashtext(NEW.target);
  RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER recipient_hashed BEFORE INSERT ON postcommit.delivery_ledger
  FOR EACH ROW WHEN (NEW.recipient_hash IS NULL AND NEW.target IS NOT NULL) EXECUTE FUNCTION postcommit.hash_recipient();
