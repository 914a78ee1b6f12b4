// Package upstream tests that boxes' connections go by upstream proxies, and nothing goes past them.
package upstream
