//! The frame of every page of plain markup: the head, a policy that forbids the network, the brand.

use gapless_page::escape_text;

const BRAND: &str = "<svg viewBox=\"0 0 16 16\" aria-hidden=\"true\"><rect x=\"1\" y=\"1\" width=\"6\" height=\"8\" rx=\"1\"/>\
    <rect x=\"8\" y=\"1\" width=\"7\" height=\"4\" rx=\"1\"/><rect x=\"8\" y=\"6\" width=\"7\" height=\"9\" rx=\"1\"/>\
    <rect x=\"1\" y=\"10\" width=\"6\" height=\"5\" rx=\"1\"/></svg>";

/// A page with the heading `name`, which is text. `body` is markup whose text is escaped already.
pub(crate) fn page(name: &str, style: &str, body: &str, code: &str) -> String {
    let name = escape_text(name);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
         img-src data:; base-uri 'none'; form-action 'none'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta name=\"generator\" content=\"Gapless\">\n<link rel=\"icon\" href=\"data:,\">\n<title>{name} · Gapless</title>\n\
         <style>{style}</style>\n</head>\n<body>\n<header class=\"top\"><span class=\"brand\">{BRAND}Gapless</span><h1>{name}</h1></header>\n\
         <main>\n{body}</main>\n<script>{code}</script>\n</body>\n</html>\n"
    )
}
