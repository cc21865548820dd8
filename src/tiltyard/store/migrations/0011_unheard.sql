-- While a request runs, heard says whether its client is there to hear of its end, as far as that is known. One whose
-- server is gone is looked for as well, whatever it says.
DROP INDEX requests_unheard;

CREATE INDEX requests_unheard ON requests (fingerprint) WHERE NOT heard OR status IS NULL;
