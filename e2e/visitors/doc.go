// Package visitors has end-to-end tests in which third-party programs visit public URLs: Chromium opens a page,
// testssl.sh grades the TLS, ssh logs in over raw TCP, slowhttptest is as slow as a client can be.
package visitors
