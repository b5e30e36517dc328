"""The protocols of model servers: paths, headers, bodies, replies and words of each (`http.answer.Dialect`)."""
