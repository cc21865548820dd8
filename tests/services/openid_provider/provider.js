// oidc-provider with the pages that it brings for development: any name signs in, with any password.
//
//     node provider.js PORT REDIRECT_URI
import Provider from "oidc-provider";

const [port, redirectUri] = process.argv.slice(2);
const provider = new Provider(`http://localhost:${port}`, {
  clients: [{
    client_id: "tiltyard-console",
    redirect_uris: [redirectUri],
    token_endpoint_auth_method: "none",
    grant_types: ["authorization_code"],
    response_types: ["code"],
  }],
  pkce: { required: () => true },
  findAccount: (context, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
});
provider.listen(Number(port), "localhost", () => console.log("listening"));
