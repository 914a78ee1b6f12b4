// Package visitors holds end-to-end tests in which programs that others wrote visit public URLs: Chromium opens a page,
// testssl.sh grades the TLS, ssh logs in over raw TCP, slowhttptest is as slow as a client can be.
package visitors
