// Package aws gets credentials of roles from AWS STS, and values from AWS Secrets Manager. The credentials for its
// requests, and the ones of a role, have the format of [sign.ParseCredentials].
package aws
