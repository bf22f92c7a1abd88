package store

import "testing"

func TestTheCertificatesOfAConnectionStringAreFound(t *testing.T) {
	t.Setenv("PGSSLCERT", "")
	t.Setenv("PGSSLROOTCERT", "")
	t.Setenv("PGSSLMODE", "")
	for dsn, want := range map[string][2]string{
		"postgres://u:p@db/x?sslmode=verify-full&sslcert=%2Fa%20b.pem&sslrootcert=/ca.pem": {"/a b.pem", "/ca.pem"},
		"postgresql://db/x?sslrootcert=/ca.pem":                                            {"", "/ca.pem"},
		"host=db sslcert = '/it\\'s.pem'  sslrootcert=/ca\\ 1.pem user=u":                  {"/it's.pem", "/ca 1.pem"},
		"host=db sslrootcert=system":                                                       {"", ""},
		"host=db sslmode=disable sslrootcert=/ca.pem":                                      {"", ""},
		"host=db":       {"", ""},
		"host":          {"", ""},
		"postgres://%%": {"", ""},
		"":              {"", ""},
	} {
		if cert, authorities := CertificateFiles(dsn); cert != want[0] || authorities != want[1] {
			t.Errorf("%s: %q, %q, want %q", dsn, cert, authorities, want)
		}
	}
	t.Setenv("PGSSLCERT", "/env.pem")
	if cert, _ := CertificateFiles("host=db"); cert != "/env.pem" {
		t.Errorf("of the environment: %q", cert)
	}
}
