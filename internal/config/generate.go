package config

//go:generate go test -run TestReferencePageIsCurrent . -args -write
