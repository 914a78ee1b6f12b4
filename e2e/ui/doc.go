// Package ui has end-to-end tests of the dashboard: Chromium opens its pages, at the admin listener of a real gateway
// with real boxes.
package ui
