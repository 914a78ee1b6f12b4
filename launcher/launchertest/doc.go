// Package launchertest makes what the launcher's tests need: archives and certificates.
package launchertest
