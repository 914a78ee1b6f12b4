// Package upstream tests that connections of boxes use the configured upstream proxies and never bypass them.
package upstream
