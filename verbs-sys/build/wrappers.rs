//! Functions that look the exported ones up at run time, for the feature `dlopen`.

use quote::quote;
use syn::{FnArg, ForeignItem, ForeignItemFn, Item, Pat, PointerMutability, ReturnType, Type};

/// Functions of libibverbs that return -1 on failure, as all of librdmacm's do. The others that
/// return an `int` return an errno.
const MINUS_ONE: [&str; 10] = [
    "ibv_close_device",
    "ibv_get_async_event",
    "ibv_get_cq_event",
    "ibv_get_device_index",
    "ibv_get_pkey_index",
    "ibv_query_gid",
    "ibv_query_pkey",
    "ibv_is_fork_initialized",
    "ibv_rate_to_mbps",
    "ibv_rate_to_mult",
];

/// Returns flags, and none if it fails.
const NO_FLAGS: &str = "ibv_query_qp_data_in_order";

/// The wrappers of all functions that these bindings declare, under the same names.
pub(crate) fn of_functions(bindings: &str) -> String {
    let file = syn::parse_file(bindings).expect("bindgen writes Rust");
    let blocks = file.items.iter().filter_map(|item| match item {
        Item::ForeignMod(block) => Some(&block.items),
        _ => None,
    });
    let functions = blocks.flatten().filter_map(|item| match item {
        ForeignItem::Fn(function) => Some(wrapper(function)),
        _ => None,
    });
    functions.collect::<Vec<_>>().join("\n")
}

fn wrapper(function: &ForeignItemFn) -> String {
    let (attrs, signature) = (&function.attrs, &function.sig);
    let (name, output) = (&signature.ident, &signature.output);
    let text = name.to_string();
    let c_name = std::ffi::CString::new(text.as_str()).expect("a name has no NUL");
    let c_name = syn::LitCStr::new(&c_name, name.span());
    let is_rdmacm = text.starts_with("rdma_");
    let library = if is_rdmacm {
        quote!(RDMACM)
    } else {
        quote!(IBVERBS)
    };
    let (mut names, mut types) = (Vec::new(), Vec::new());
    for input in &signature.inputs {
        let FnArg::Typed(input) = input else {
            unreachable!("a C function has no receiver: {name}");
        };
        let Pat::Ident(argument) = &*input.pat else {
            unreachable!("bindgen names every argument: {name}");
        };
        names.push(&argument.ident);
        types.push(&input.ty);
    }
    let missing = match output {
        ReturnType::Default => quote!(nothing),
        ReturnType::Type(_, returned) => match &**returned {
            Type::Ptr(pointer) if matches!(pointer.mutability, PointerMutability::Mut(_)) => {
                quote!(null)
            }
            Type::Ptr(_) => quote!(null_const),
            Type::Path(path) => match path.path.segments.last() {
                Some(last) if last.ident == "isize" => quote!(minus_errno),
                Some(last) if last.ident != "c_int" => quote!(zero),
                _ if text == NO_FLAGS => quote!(zero),
                _ if is_rdmacm || MINUS_ONE.contains(&text.as_str()) => {
                    quote!(minus_one)
                }
                _ => quote!(errno),
            },
            _ => quote!(zero),
        },
    };
    quote! {
        #(#attrs)*
        pub unsafe extern "C" fn #name(#(#names: #types),*) #output {
            static SYMBOL: crate::dlopen::Symbol = crate::dlopen::symbol!(#library, #text, #c_name);
            match SYMBOL.get() {
                Ok(address) => {
                    let function: unsafe extern "C" fn(#(#types),*) #output =
                        core::mem::transmute(address);
                    function(#(#names),*)
                }
                Err(errno) => crate::dlopen::#missing(errno),
            }
        }
    }
    .to_string()
}
