// Package deploy tests the deployments in this folder: units of systemd, a project of Docker
// Compose, a chart of Helm. Each is read by the library or the program that will read it in
// production, and the configuration in it is judged by taskd, dispatcher and perceptorctl
// themselves, as --print-config does.
//
// It is a module of its own, so that what reads charts and compose files is no dependency of
// Perceptor.
package deploy
