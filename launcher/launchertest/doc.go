// Package launchertest creates archives and certificates for tests.
package launchertest
